"""The thin asyncio layer around sessions: it performs their actions and tells them the results."""
