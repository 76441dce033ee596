"""Networks, profiles, fits."""
