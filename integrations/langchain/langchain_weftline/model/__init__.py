"""The parts of a ChatWeftline: options, tools, connections, patience, and its errors."""
