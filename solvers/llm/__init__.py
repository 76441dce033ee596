"""Language models on whole GPUs: how long a step takes, what the cache holds, and the rate that an SLO allows."""
