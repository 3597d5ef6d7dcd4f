"""What a request says about its answer: its body read leniently, and turned into `Features`."""
