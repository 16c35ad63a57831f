"""A path to samples by number. Knows neither torch nor any order but the stored one."""
