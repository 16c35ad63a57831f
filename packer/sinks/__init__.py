"""How converted samples reach disk: fragments by the workers, shards or an LMDB file from them."""
