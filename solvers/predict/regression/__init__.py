"""Small regressions that several techniques share."""
