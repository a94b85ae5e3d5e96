"""What a launch does, counted from its arguments, and about how long it takes."""
