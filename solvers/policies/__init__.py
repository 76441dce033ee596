"""Which policies there are, what people are told of them, groups of services, warm-up."""
