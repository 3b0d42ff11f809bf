"""What a ChatWeftline is made of: options, tools, connections, patience, and its errors."""
