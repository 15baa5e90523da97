"""What a run found, for people and for programs: terminal, JSON, JUnit XML and one HTML page."""
