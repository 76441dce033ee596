"""What a tick computes around the policy: network variants, power caps, binding, transition."""
