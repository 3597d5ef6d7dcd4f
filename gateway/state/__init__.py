"""What replicas share, behind one small protocol with two homes: this process's memory, or Redis."""
