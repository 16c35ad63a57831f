"""How fast a store is read on this machine, and with which settings it should be."""
