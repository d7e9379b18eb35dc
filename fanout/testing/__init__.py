"""What users need to test their streaming jobs offline."""
