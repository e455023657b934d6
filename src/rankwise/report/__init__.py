"""One self-contained page from what a scan wrote to disk."""
