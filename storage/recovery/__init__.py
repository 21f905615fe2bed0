"""From the device's bytes to an index, reading only. What was found is a report; what to do about it is the engine's."""
