"""What the back ends say about themselves: their `/metrics` read, differenced, judged and exported."""
