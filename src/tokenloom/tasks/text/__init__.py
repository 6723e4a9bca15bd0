"""What the tasks on text share: how they go on with text, and the line that they have to beat."""
