"""Data that arrives: the sensor that looks at a source again and again, and the event that wakes it."""
