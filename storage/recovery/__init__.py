"""From the device's bytes to an index, reading only. What was found is a report; acting on it is the engine's."""
