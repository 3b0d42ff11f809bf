"""The thin asyncio layer around sessions: this layer performs the sessions' actions and tells them
the results."""
