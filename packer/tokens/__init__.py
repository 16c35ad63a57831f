"""Documents to tokens, and tokens to sequences."""
