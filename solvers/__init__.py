"""The pure half of Plimsoll: numbers in, plan out. No clock, no input or output, no logging, no environment."""
