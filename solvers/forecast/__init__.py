"""The arrival rate that the next plan must serve: techniques, back-tests, choice."""
