"""Servers and engines that Ray places on the nodes of a cluster."""
