"""Small Spark sessions and driver processes for tests."""
