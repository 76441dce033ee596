"""Technique: training and offline tasks on what the replicas of a bound plan leave over."""
