"""What happens to a sample between reading and storing: decode, geometry, encode."""
