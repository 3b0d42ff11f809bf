"""The weftline server: sessions of calls and variables, run as graphs on engines."""
