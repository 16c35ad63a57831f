"""Real users' bad luck: every case of a generated corpus, run by what its `case.json` says."""
