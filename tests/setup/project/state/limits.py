LIMITS = {"Ann": 100}
