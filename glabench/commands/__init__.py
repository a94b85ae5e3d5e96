"""One thin file a command: parse, call one function, exit code. Nothing heavy is imported before it is needed."""
