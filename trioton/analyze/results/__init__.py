"""Results of an analysis: what was found as one value, and its forms: JSON, CSV, text, a report, configurations."""
