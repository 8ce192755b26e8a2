"""Models: loading them, their key and value cache, and the target that the decode loop verifies against."""
