"""The contract in JSON: problems and plans, read strictly and written exactly."""
