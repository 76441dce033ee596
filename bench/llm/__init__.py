"""Language models: how near predictions come to measured servers, and plans to their bounds."""
