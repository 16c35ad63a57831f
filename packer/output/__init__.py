"""From a staging folder to a published store: lock, journal, resume, columns and manifest, rename."""
