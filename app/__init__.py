"""The impure half of the control plane."""
