"""The joint technique: GPU type, count, co-location, SM percent, batch and clock in one optimisation with a bound."""
