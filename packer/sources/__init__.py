"""Where raw samples come from: each source lists cheap refs once and reads one ref at a time."""
