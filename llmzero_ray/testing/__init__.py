"""Contract tests as classes, for implementations inside and outside this project. Needs pytest."""
