"""What replicas share, behind one small protocol with two implementations: this process's memory, or Redis."""
