"""What tasks share that read pictures."""
