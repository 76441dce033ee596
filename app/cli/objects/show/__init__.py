"""What commands on objects show: rates and predictions, fields that changed, and parts of an object by JSONPath."""
