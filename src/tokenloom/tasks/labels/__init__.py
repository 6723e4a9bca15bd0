"""What tasks share that give labels."""
