"""Plans, explanations, previews, policies, restores, simulations."""
