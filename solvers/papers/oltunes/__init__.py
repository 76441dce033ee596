"""OLTunes: tuning score, and the job scheduler with queues and affinity."""
