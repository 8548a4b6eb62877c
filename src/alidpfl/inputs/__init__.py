"""What users type, numbers and names: checked, or answered with what would do."""
