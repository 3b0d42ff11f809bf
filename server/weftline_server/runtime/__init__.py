"""The thin asyncio place around sessions: it performs their actions and tells them the results."""
