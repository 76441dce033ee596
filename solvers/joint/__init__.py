"""The joint optimiser: policy, course of a search, proofs, power budgets."""
